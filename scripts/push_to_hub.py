"""Publish a trained model on the Hub: `vanilla-transformer publish`."""

from _imports import command

main = command("publish", __file__)

if __name__ == "__main__":
    main()
