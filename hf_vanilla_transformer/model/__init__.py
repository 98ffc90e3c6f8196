"""The model, its configuration and its tokenizer: the files that travel to the Hub."""
