"""From a pin to patched wheels, one stage a module; ``pipeline`` runs them in order."""
