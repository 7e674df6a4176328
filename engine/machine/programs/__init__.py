"""Programs that ask libraries of others. In a folder of their own: Python finds what lies beside a program."""
