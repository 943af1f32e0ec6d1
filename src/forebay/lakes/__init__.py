"""Lake formats: implementations of the SPI in forebay.lake, loaded by entry point and never imported directly."""
