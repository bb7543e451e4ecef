"""Small parts that every room may use. None knows what kroute is for."""
