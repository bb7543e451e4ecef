"""Make it so: compare plans with what was applied, write the difference, verify, repair, clean up."""
