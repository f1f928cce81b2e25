"""What containers may use of CPU, memory and disk, how they are held to it, and what they do use."""
