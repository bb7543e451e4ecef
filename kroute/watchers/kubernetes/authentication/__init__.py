"""How credentials are had."""
