"""Convert a checkpoint of another code base: `vanilla-transformer convert`."""

from _imports import command

main = command("convert", __file__)

if __name__ == "__main__":
    main()
