"""What all parts of a connection share: settings, channels to servers, counters."""
