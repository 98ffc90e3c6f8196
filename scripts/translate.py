"""Translate text with a trained model: `vanilla-transformer translate`."""

from _imports import command

main = command("translate", __file__)

if __name__ == "__main__":
    main()
