"""Flow control: who waits for what, and until when."""
