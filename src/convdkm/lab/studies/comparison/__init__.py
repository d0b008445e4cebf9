"""A comparison of methods: a folder of trials, each a method fitted once, and their tables."""
