# The file of users of the demo, as a shop's back office exports it: a header,
# Windows line ends, users in no order, here and there a line that is wrong, or
# a user named twice.  Variable: lines.
BEGIN {
	wrong[0] = ""; wrong[1] = "unknown"; wrong[2] = "-5"; wrong[3] = "4 2"
	wrong[4] = "99999999999999999999"
	printf "user_id\r\n"
	for (n = 1; n <= lines; n++) {
		user = 1 + n * 999999937 % lines	# a prime: each user once
		if (n % 1000 == 7)
			user = wrong[int(n / 1000) % 5]
		else if (n > 100 && n % 500 == 9)
			user = 1 + (n - 100) * 999999937 % lines
		printf "%s\r\n", user
	}
}
