"""Train a tokenizer: `vanilla-transformer tokenizer`."""

from _imports import command

main = command("tokenizer", __file__)

if __name__ == "__main__":
    main()
