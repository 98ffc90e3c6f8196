"""Average the checkpoints of a run: `vanilla-transformer average`."""

from _imports import command

main = command("average", __file__)

if __name__ == "__main__":
    main()
