# The tests that look at the system's memory, on this kernel and with its pages.
page_kib=$(awk '/KernelPageSize/ { print $2; exit }' /proc/self/smaps)
uzram-unit --test-threads 1 region:: pool::arena:: store::slot:: system_page:: headroom:: store::compact \
    store::fault_tests::any_failed_allocation_of_a_write_leaves
uzram-media-unit --test-threads 1 mapping:: medium::
uzram-media-it --test-threads 1 devices::
uzram-it --test-threads 1 limits::a_ limits::the_limit_holds
echo "pages of $page_kib KiB" > /out/remark
