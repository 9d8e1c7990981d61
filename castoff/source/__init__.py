"""The build from source: upstream's own steps, on checkouts that have the topics."""
