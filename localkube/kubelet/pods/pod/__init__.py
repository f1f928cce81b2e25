"""One pod: its record, how events change it, and the drivers that do what follows."""
