"""File formats: ELF libraries, and wheels as archives. Knows nothing of pins or topics."""
