"""Suite of requests' lives: steps drawn so that each two ways of use meet, all looked at alike."""
