"""What two wings share and neither owns; imports nothing of sharegen but its errors."""
