"""`python -m hf_vanilla_transformer`: same as `vanilla-transformer`."""

from .cli.main import main

if __name__ == "__main__":
    main()
