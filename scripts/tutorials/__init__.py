"""The seven tutorials that this model grew from, reproduced with it."""
