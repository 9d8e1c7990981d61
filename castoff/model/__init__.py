"""What the tree says: pins, topics, the changelog, and whether they are complete."""
