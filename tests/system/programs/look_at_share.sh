# What a container sees of its share. busybox is static; gnutrue has a loader.
echo "preload: $(cat /etc/ld.so.preload | tr '\n' ' ')"
for place in /usr/lib/nvc /run/nvc-share/limits /run/nvc-share/region /etc/ld.so.preload; do
    echo "mount $place $(awk -v p=$place '$5 == p {print $6}' /proc/self/mountinfo)"
done
for place in /usr/lib/nvc/x /run/nvc-share/limits /etc/ld.so.preload; do
    (echo x >>$place) 2>/dev/null && echo "written $place"
done
printf '' >>/run/nvc-share/region && echo "region can be written"
echo "magic $(head -c 4 /run/nvc-share/limits) $(head -c 4 /run/nvc-share/region)"
/usr/bin/gnutrue && echo "a program runs"
for library in libnvc-shim.so libnvc-shim-managed.so; do
    LD_DEBUG=files /usr/bin/gnutrue 2>&1 | grep -q "calling init: /usr/lib/nvc/.*/$library" && echo "with $library"
done
true
