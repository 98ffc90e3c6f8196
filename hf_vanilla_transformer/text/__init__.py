"""User text: sentence splitting, case, languages, and protection of untranslatable items."""
