from windrow.cli.main import main

raise SystemExit(main())
