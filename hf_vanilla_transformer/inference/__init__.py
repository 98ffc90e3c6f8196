"""Using a trained model: translation, scores, pipeline, pictures."""
