"""In plain mode, each cluster has a range of loopback addresses of its own."""

import socket

from localkube.network.addresses import API_PORT, reserve_octet


def test_two_clusters_of_one_name_have_separate_address_ranges():
    """Neither listens yet: both API servers were given one address, and the second never started."""
    first, reservation = reserve_octet("lab")
    second, other = reserve_octet("lab")
    assert first != second
    with other:
        reservation.close()
        again, reservation = reserve_octet("lab", previous=first)
        reservation.close()
        assert again == first


def test_a_range_in_which_another_program_listens_is_passed_over():
    octet, reservation = reserve_octet("lab")
    reservation.close()
    with socket.create_server((f"127.{octet}.0.1", API_PORT)):
        other, reservation = reserve_octet("lab", previous=octet)
    reservation.close()
    assert other != octet
