"""File formats: ELF libraries, and wheels as archives. Nothing here depends on pins or topics."""
