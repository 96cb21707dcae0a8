"""Types that properties of HETERO are made of: pins and sizes in bytes."""
