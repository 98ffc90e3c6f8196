"""Export a trained model to CTranslate2, ONNX or Marian: `vanilla-transformer export`."""

from _imports import command

main = command("export", __file__)

if __name__ == "__main__":
    main()
