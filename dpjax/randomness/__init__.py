"""Named streams of keys, normal noise on the device, exact integer noise on the host."""
