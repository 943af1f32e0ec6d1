"""Lake formats: implementations of the SPI in forebay.lake, found by entry point and imported by nobody."""
