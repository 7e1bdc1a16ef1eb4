"""Put numbers, tables and figures together into report files and one HTML page."""
