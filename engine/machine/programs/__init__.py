"""Programs that ask libraries of others, in a folder of their own: Python finds what lies beside one."""
