"""The base of all layers: errors, the console, running programs, the cache. Nothing here depends on pins or wheels."""
