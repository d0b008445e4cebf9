"""Files that are whole or not there, with digests; text fit for where it is written."""
