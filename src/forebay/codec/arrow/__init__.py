"""Arrow: types, messages, growable columns and dictionaries."""
