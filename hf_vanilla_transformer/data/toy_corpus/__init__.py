"""The built-in English-Spanish corpus."""
