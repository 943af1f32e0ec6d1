"""From stream to lake, round by round."""
