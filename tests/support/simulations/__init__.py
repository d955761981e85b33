"""Many processes in one, under one seed; models of what must hold of them; random inputs."""
