"""Text as people type it: sentences, case, and what is not translated."""
