"""What everything else stands on: errors, the console, running programs, the cache. Knows nothing of pins or wheels."""
