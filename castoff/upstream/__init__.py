"""Work on upstream's trees and releases: checkouts, hunks, pull requests, new pins, upstream's own tests."""
