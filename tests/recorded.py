"""Machines as text: folders that read like the /proc, /sys and /etc of a device."""

from __future__ import annotations

from pathlib import Path

KIB = 1024


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def meminfo(total: int, available: int, swap: int = 0) -> str:
    rows = {"MemTotal": total, "MemFree": available // 4, "MemAvailable": available}
    rows |= {"SwapTotal": swap, "SwapFree": swap}
    return "".join(f"{name}:{count // KIB:>16} kB\n" for name, count in rows.items())


def cpus(count: int, threads: int = 1) -> dict[str, str]:
    """`count` logical CPUs in cores of `threads`."""
    files = {"proc/self/status": f"Name:\ts2chat\nCpus_allowed_list:\t0-{count - 1}\n"}
    for cpu in range(count):
        first = cpu // threads * threads
        core = f"{first}-{first + threads - 1}" if threads > 1 else f"{first}"
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"] = core + "\n"
    return files


def orin_nano(root: Path) -> Path:
    """A developer kit with JetPack 6.2 in its 15 W mode, page cache full, somewhat warm."""
    arm = "processor\t: 0\nFeatures\t: fp asimd aes crc32 atomics fphp asimdhp asimddp lrcpc\n"
    return write(
        root,
        {
            **cpus(6),
            "proc/cpuinfo": arm + "CPU implementer\t: 0x41\nCPU part\t: 0xd42\n",
            "proc/meminfo": meminfo(7_802_048 * KIB, 5_242_880 * KIB, 3_900_000 * KIB),
            "proc/swaps": "Filename Type Size Used Priority\n/dev/zram0 partition 650000 0 5\n",
            "proc/device-tree/model": "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super\x00",
            "proc/device-tree/serial-number": "1420000000042\x00",
            "proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005-super\x00nvidia,p3767-0005\x00"
            "nvidia,tegra234\x00",
            "etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic\n",
            "etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=15W >\nCPU_ONLINE CORE_0 1\n"
            "< POWER_MODEL ID=2 NAME=MAXN_SUPER >\n",
            "var/lib/nvpmodel/status": "pmode:0000\n",
            "sys/class/devfreq/17000000.gpu/cur_freq": "306000000\n",
            "sys/class/devfreq/17000000.gpu/max_freq": "624750000\n",
            "sys/class/devfreq/17000000.gpu/device/load": "437\n",
            "sys/class/devfreq/15340000.vic/cur_freq": "1\n",
            "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
            "sys/class/thermal/thermal_zone0/temp": "51250\n",
            "sys/class/thermal/thermal_zone0/trip_point_0_type": "passive\n",
            "sys/class/thermal/thermal_zone0/trip_point_0_temp": "99000\n",
            "sys/class/thermal/thermal_zone1/type": "cv0-thermal\n",
            "sys/class/thermal/thermal_zone1/temp": "-256000\n",
            "sys/class/hwmon/hwmon3/oc1_event_cnt": "0\n",
            "sys/class/hwmon/hwmon3/oc3_event_cnt": "7\n",
        },
    )
