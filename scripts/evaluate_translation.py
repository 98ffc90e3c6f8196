"""Evaluate translations against references: `vanilla-transformer evaluate`."""

from _imports import command

main = command("evaluate", __file__)

if __name__ == "__main__":
    main()
