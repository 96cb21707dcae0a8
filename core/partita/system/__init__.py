"""What the machine and the operating system offer: processors, mapped files, threads."""
