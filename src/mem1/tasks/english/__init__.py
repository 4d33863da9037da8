"""Atlas in English: invented worlds written out as people write, and the families of tasks of `mem1 bench`."""
