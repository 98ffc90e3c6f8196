"""Train a translation model: `vanilla-transformer train`."""

from _imports import command

main = command("train", __file__)

if __name__ == "__main__":
    main()
