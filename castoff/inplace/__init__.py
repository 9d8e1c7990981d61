"""castoff in an environment that exists: stock torch and torch_xla become the patched ones, and stock again."""
